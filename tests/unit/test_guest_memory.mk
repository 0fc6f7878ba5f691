$(eval $(call unit_test,test_guest_memory,common/error common/util datapath/guest_memory))
