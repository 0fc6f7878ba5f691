BENCHES += $(OUT)/tests/bench_tx_checksum
$(OUT)/tests/bench_tx_checksum: $(OUT)/obj/tests/bench/bench_tx_checksum.o $(OUT)/obj/tests/bench/measure.o $(patsubst %,$(OUT)/obj/user/%.o,common/error common/log \
		common/util datapath/segment datapath/frame_checksum datapath/checksum datapath/vnet datapath/layout datapath/lane datapath/lane_send datapath/lane_device datapath/lane_socket \
		datapath/frame_pool)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)
