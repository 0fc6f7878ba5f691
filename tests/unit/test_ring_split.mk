RING_ROOMS := common/error common/util common/reaper datapath/guest_memory datapath/ring_split datapath/ring_split_take datapath/ring_split_put datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/layout
$(eval $(call unit_test,test_ring_split,$(RING_ROOMS)))
$(eval $(call unit_test,test_ring_put,$(RING_ROOMS)))
$(eval $(call unit_test,test_ring_notify,$(RING_ROOMS)))
$(eval $(call unit_test,test_ring_random,$(RING_ROOMS)))
$(eval $(call unit_test,test_ring_faults,$(RING_ROOMS)))
$(eval $(call unit_test,test_ring_watch,$(RING_ROOMS) datapath/ring_split_watch))
