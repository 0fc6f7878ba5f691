COALESCE_ROOMS := datapath/coalesce datapath/coalesce_match datapath/segment datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/vnet datapath/layout
$(eval $(call unit_test,test_coalesce,$(COALESCE_ROOMS)))
$(eval $(call unit_test,test_coalesce_rules,$(COALESCE_ROOMS)))
$(eval $(call unit_test,test_coalesce_sums,$(COALESCE_ROOMS)))
