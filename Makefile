# SPDX-License-Identifier: BSD-2-Clause
# make            build/vhostlane and build/bpf/*.bpf.o
# make check      installs what tests need, builds with warnings as errors, runs all tests
# make demo       shows it at work on this machine
# VARIANT=asan|tsan builds a second tree with sanitizers under build/VARIANT.

CLANG ?= clang
BPFTOOL ?= bpftool
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := 0.1

VARIANT ?= release
ifeq ($(VARIANT),release)
OUT := build
OPT := -O3 -march=x86-64-v2 -g
else ifeq ($(VARIANT),asan)
OUT := build/asan
OPT := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
else ifeq ($(VARIANT),tsan)
OUT := build/tsan
OPT := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
else
$(error VARIANT is '$(VARIANT)': neither release, asan nor tsan; name one of them)
endif
ifneq ($(shell uname -m),x86_64)
OPT := $(filter-out -march=x86-64-v2,$(OPT))
endif

WERROR ?= -Werror
PKGS := libbpf libxdp numa liburcu-qsbr ck libcyaml jansson libnl-route-3.0 libcap-ng libsystemd
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS))
PKG_LIBS = $(shell pkg-config --libs $(PKGS))
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wno-unused-parameter $(WERROR)
CPPFLAGS += -D_GNU_SOURCE -DVHOSTLANE_VERSION=\"$(VERSION)\" -Iinclude -Iuser -I$(OUT)/gen -Ibuild/skel
CFLAGS_ALL = -std=gnu17 $(OPT) $(WARN) $(CPPFLAGS) $(PKG_CFLAGS) -pthread -fno-strict-aliasing $(CFLAGS)
LDLIBS_ALL = $(PKG_LIBS) -lpthread -lm $(LDLIBS)

COMMON := $(wildcard user/common/*.c)
DATAPATH := $(wildcard user/datapath/*.c)
CONTROL := $(wildcard user/control/*.c)
CLI := $(wildcard user/cli/*.c)
SOURCES := $(COMMON) $(DATAPATH) $(CONTROL) $(CLI)
OBJECTS := $(SOURCES:%.c=$(OUT)/obj/%.o)
BPF_SOURCES := $(wildcard bpf/*.bpf.c)
BPF_OBJECTS := $(BPF_SOURCES:bpf/%.bpf.c=build/bpf/%.bpf.o)
SKELETONS := $(BPF_SOURCES:bpf/%.bpf.c=build/skel/%.skel.h)
MAN_SOURCES := $(wildcard docs/*.scd)
MAN := $(MAN_SOURCES:docs/%.scd=build/man/%)

.PHONY: all
all: $(OUT)/vhostlane $(BPF_OBJECTS) man

# V=1 shows the commands.
ifeq ($(V),1)
say = @:
Q :=
else
say = @echo "  $(1)	$@"
Q := @
endif
ifeq ($(origin CC),default)
CC := gcc
endif

$(OUT)/vhostlane: $(OBJECTS)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $(OBJECTS) $(LDLIBS_ALL)

$(OUT)/obj/%.o: %.c | $(SKELETONS)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

build/bpf/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/*.h) $(wildcard include/vhostlane/*.h) vmlinux.h
	@mkdir -p $(@D)
	$(call say,BPF)
	$(Q)$(CLANG) -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 -Wall -Werror -Iinclude -Ibpf -I. -c -o $@ $<

build/skel/%.skel.h: build/bpf/%.bpf.o
	@mkdir -p $(@D)
	$(call say,SKEL)
	$(Q)$(BPFTOOL) gen skeleton $< name $* > $@.tmp && mv $@.tmp $@

.PHONY: vmlinux
vmlinux:
	scripts/make-vmlinux.sh > vmlinux.h.tmp && mv vmlinux.h.tmp vmlinux.h

.PHONY: man
man: $(MAN)
build/man/%: docs/%.scd
	@mkdir -p $(@D)
	scdoc < $< > $@.tmp && mv $@.tmp $@

# Tests. Each directory adds its own: unit_test(name, objects without .o, relative to user/).
UNIT_TESTS :=
define unit_test
UNIT_TESTS += $(OUT)/tests/$(1)
$(OUT)/tests/$(1): $(OUT)/obj/tests/unit/$(1).o $(patsubst %,$(OUT)/obj/user/%.o,$(2))
	@mkdir -p $$(@D)
	$$(call say,LINK)
	$$(Q)$$(CC) $$(CFLAGS_ALL) $$(LDFLAGS) -o $$@ $$^ -lcmocka $$(LDLIBS_ALL)
endef
-include $(wildcard tests/*/*.mk)

# Here, when all have been named.
.PHONY: benches
benches: $(BENCHES)

.PHONY: unit-tests list-tests
unit-tests: $(UNIT_TESTS) $(BPF_TESTS) $(NET_TESTS)
list-tests:
	@printf '%s\n' $(UNIT_TESTS) $(BPF_TESTS) $(NET_TESTS)

.PHONY: check check-kernels demo bench bench-seeds
check:
	scripts/check.sh
# KERNELS: which, see the script.
check-kernels: all
	scripts/check-kernels.sh $(KERNELS)
demo:
	scripts/demo.sh
bench: all
	scripts/bench/run.sh
bench-seeds: all
	scripts/bench/seeds.sh
# FUZZ_SECONDS a target, 60 by default.
fuzz: fuzz-targets
	tests/fuzz/run.sh $(FUZZ_TARGETS)

# Installed: program, BPF objects (for bpftool alone), unit, man pages, completion, example configuration.
SBINDIR = $(DESTDIR)$(PREFIX)/sbin
LIBDIR = $(DESTDIR)$(PREFIX)/lib/vhostlane
MANDIR = $(DESTDIR)$(PREFIX)/share/man
UNITDIR = $(DESTDIR)$(PREFIX)/lib/systemd/system
COMPLETIONDIR = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
EXAMPLEDIR = $(DESTDIR)$(PREFIX)/share/doc/vhostlane

.PHONY: install uninstall
install: all
	install -D -m 755 $(OUT)/vhostlane $(SBINDIR)/vhostlane
	install -D -m 644 -t $(LIBDIR)/bpf $(BPF_OBJECTS)
	install -D -m 755 scripts/load-with-bpftool.sh $(LIBDIR)/load-with-bpftool.sh
	install -D -m 644 build/man/vhostlane.8 $(MANDIR)/man8/vhostlane.8
	install -D -m 644 build/man/vhostlane.yaml.5 $(MANDIR)/man5/vhostlane.yaml.5
	install -d $(UNITDIR)
	sed 's|@SBINDIR@|$(PREFIX)/sbin|' docs/vhostlane.service > $(UNITDIR)/vhostlane.service
	chmod 644 $(UNITDIR)/vhostlane.service
	install -D -m 644 docs/vhostlane.bash-completion $(COMPLETIONDIR)/vhostlane
	install -D -m 644 docs/vhostlane.yaml $(EXAMPLEDIR)/vhostlane.yaml

# Directories that install may have made; rmdir leaves those that hold something. What every system has stays.
UNINSTALL_DIRS = $(LIBDIR)/bpf $(LIBDIR) $(EXAMPLEDIR) $(MANDIR)/man8 $(MANDIR)/man5 $(UNITDIR) $(dir $(UNITDIR)) $(COMPLETIONDIR) \
	$(dir $(COMPLETIONDIR))
ifeq ($(filter /usr /usr/local,$(DESTDIR)$(PREFIX)),)
UNINSTALL_DIRS += $(SBINDIR) $(MANDIR) $(dir $(EXAMPLEDIR)) $(DESTDIR)$(PREFIX)/share $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)
endif
uninstall:
	@rm -f $(SBINDIR)/vhostlane $(MANDIR)/man8/vhostlane.8 $(MANDIR)/man5/vhostlane.yaml.5 $(UNITDIR)/vhostlane.service \
		$(COMPLETIONDIR)/vhostlane $(EXAMPLEDIR)/vhostlane.yaml $(LIBDIR)/load-with-bpftool.sh $(LIBDIR)/bpf/*.bpf.o
	@rmdir $(UNINSTALL_DIRS) 2>/dev/null || true

.PHONY: clean
clean:
	rm -rf build

-include $(shell find $(OUT)/obj -name '*.d' 2>/dev/null)
