BENCHES += $(OUT)/tests/bench_segment
$(OUT)/tests/bench_segment: $(OUT)/obj/tests/bench/bench_segment.o $(OUT)/obj/tests/bench/measure.o $(patsubst %,$(OUT)/obj/user/%.o,common/util datapath/segment \
		datapath/frame_checksum datapath/checksum datapath/vnet datapath/layout)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)
