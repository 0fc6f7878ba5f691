# Load generators and their real vhost-user frontend; scripts/bench runs them.
BENCH_FRONTEND_OBJECTS := $(addprefix $(OUT)/obj/,tests/bench/frontend.o user/control/vhost_user_message.o user/common/reaper.o user/common/error.o user/common/util.o)

BENCHES += $(OUT)/tests/bench_flood
$(OUT)/tests/bench_flood: $(OUT)/obj/tests/bench/flood.o $(OUT)/obj/tests/bench/measure.o $(BENCH_FRONTEND_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)

BENCHES += $(OUT)/tests/bench_generator
$(OUT)/tests/bench_generator: $(addprefix $(OUT)/obj/,$(addprefix tests/bench/,generator.o traffic.o guest_end.o wire_end.o measure.o) \
		$(addprefix user/,common/cpulist.o common/log.o datapath/lane.o datapath/lane_send.o datapath/frame_checksum.o datapath/checksum.o datapath/layout.o datapath/lane_device.o datapath/lane_socket.o datapath/frame_pool.o)) \
		$(BENCH_FRONTEND_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)
