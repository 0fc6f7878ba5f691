$(eval $(call unit_test,test_coalesce,datapath/coalesce datapath/coalesce_match datapath/segment datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/vnet datapath/layout))
