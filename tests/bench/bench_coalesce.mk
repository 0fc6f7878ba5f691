BENCHES += $(OUT)/tests/bench_coalesce
$(OUT)/tests/bench_coalesce: $(OUT)/obj/tests/bench/bench_coalesce.o $(OUT)/obj/tests/bench/measure.o $(patsubst %,$(OUT)/obj/user/%.o,common/error \
		common/util datapath/coalesce datapath/coalesce_match datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/vnet datapath/layout common/reaper datapath/guest_memory \
		datapath/ring_split datapath/ring_split_take datapath/ring_split_put)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)
