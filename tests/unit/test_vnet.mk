$(eval $(call unit_test,test_vnet,datapath/vnet datapath/layout))
