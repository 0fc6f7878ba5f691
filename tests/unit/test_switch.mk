$(eval $(call unit_test,test_switch,datapath/switch datapath/forwarding datapath/counters common/util))
