# BPF programs by the kernel's program test, and the loader on real devices. bpf_test(NAME, objects without .o, relative to user/).
BPF_TESTS :=
define bpf_test
BPF_TESTS += $(OUT)/tests/$(1)
$(OUT)/obj/tests/bpf/$(1).o: $(SKELETONS)
$(OUT)/tests/$(1): $(OUT)/obj/tests/bpf/$(1).o $(patsubst %,$(OUT)/obj/user/%.o,$(2))
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS_ALL) $$(LDFLAGS) -o $$@ $$^ -lcmocka $$(LDLIBS_ALL)
endef
BPF_LOADER_ROOMS := control/bpf_loader control/bpf_host_link control/bpf_pins control/bpf_xdp control/bpf_tc control/bpf_maps common/error common/log common/util

$(eval $(call bpf_test,test_steer))
$(eval $(call bpf_test,test_steer_flows))
$(eval $(call bpf_test,test_tc))
$(eval $(call bpf_test,test_bpf_loader,$(BPF_LOADER_ROOMS)))
$(eval $(call bpf_test,test_bpf_loader_others,$(BPF_LOADER_ROOMS)))
$(eval $(call bpf_test,test_bpf_loader_crash,$(BPF_LOADER_ROOMS)))

.PHONY: bpf-tests
bpf-tests: $(BPF_TESTS)
