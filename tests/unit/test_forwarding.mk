$(eval $(call unit_test,test_forwarding,datapath/forwarding))
