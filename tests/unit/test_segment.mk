$(eval $(call unit_test,test_segment,datapath/segment datapath/frame_checksum datapath/checksum datapath/vnet datapath/layout))
