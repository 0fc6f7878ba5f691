$(eval $(call unit_test,test_switch,datapath/switch datapath/forwarding datapath/counters datapath/vnet datapath/layout datapath/checksum common/util common/log))
