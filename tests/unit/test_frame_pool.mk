$(eval $(call unit_test,test_frame_pool,datapath/frame_pool common/error common/log common/util))
