GUEST_MEMORY_ROOMS := common/error common/util common/reaper datapath/guest_memory
$(eval $(call unit_test,test_guest_memory,$(GUEST_MEMORY_ROOMS)))
$(eval $(call unit_test,test_guest_memory_faults,$(GUEST_MEMORY_ROOMS)))
