$(eval $(call unit_test,test_layout,datapath/layout))
