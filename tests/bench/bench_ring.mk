BENCHES += $(OUT)/tests/bench_ring
$(OUT)/tests/bench_ring: $(OUT)/obj/tests/bench/bench_ring.o $(patsubst %,$(OUT)/obj/user/%.o,common/error common/util \
		common/reaper datapath/guest_memory datapath/ring_split datapath/ring_split_take datapath/ring_split_put datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/layout)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)
