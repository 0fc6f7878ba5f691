# Tests that need a network namespace of their own, and root: they make it themselves.
LANE_TEST_OBJECTS := $(addprefix $(OUT)/obj/,tests/net/lane_bench.o tests/net/lane_rig.o user/datapath/lane.o user/datapath/lane_send.o user/datapath/frame_checksum.o user/datapath/checksum.o user/datapath/layout.o user/datapath/vnet.o user/datapath/lane_device.o \
	user/datapath/lane_socket.o user/datapath/frame_pool.o user/common/cpulist.o user/common/error.o user/common/log.o user/common/util.o)
LANE_TESTS := $(OUT)/tests/test_lane $(OUT)/tests/test_lane_faults $(OUT)/tests/test_lane_checksum
NET_TESTS += $(LANE_TESTS)
$(LANE_TESTS): $(OUT)/tests/%: $(OUT)/obj/tests/net/%.o $(LANE_TEST_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS_ALL)
