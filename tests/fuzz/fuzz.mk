# libFuzzer targets, built apart from all else with the sanitizers that find what they look for. `make fuzz` runs them all.
#   build/fuzz/fuzz_NAME [-max_total_time=60]    corpora are not kept: the targets make their own packets
FUZZ_CC ?= clang
FUZZ_TARGETS :=
define fuzz_target
FUZZ_TARGETS += build/fuzz/$(1)
build/fuzz/$(1): tests/fuzz/$(1).c $(patsubst %,user/%.c,$(2)) $(wildcard user/*/*.h include/vhostlane/*.h tests/fuzz/*.h tests/unit/offload_packet.h)
	@mkdir -p $$(@D)
	$$(call say,FUZZ)
	$$(Q)$$(FUZZ_CC) -std=gnu17 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined $$(WARN) $$(CPPFLAGS) \
		-fno-strict-aliasing -o $$@ tests/fuzz/$(1).c $(patsubst %,user/%.c,$(2))
endef
$(eval $(call fuzz_target,fuzz_layout,datapath/layout))
$(eval $(call fuzz_target,fuzz_segment,datapath/segment datapath/frame_checksum datapath/checksum datapath/vnet datapath/layout))
$(eval $(call fuzz_target,fuzz_coalesce,datapath/coalesce datapath/coalesce_match datapath/segment datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/vnet datapath/layout))
$(eval $(call fuzz_target,fuzz_message,control/vhost_user_message common/reaper common/error common/util))

.PHONY: fuzz-targets
fuzz-targets: $(FUZZ_TARGETS)
