$(eval $(call unit_test,test_guest_memory,common/error common/util common/reaper datapath/guest_memory))
