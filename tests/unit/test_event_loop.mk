$(eval $(call unit_test,test_event_loop,common/error control/event_loop))
