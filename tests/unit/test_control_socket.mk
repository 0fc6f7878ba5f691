$(eval $(call unit_test,test_control_socket,common/error common/log common/suggest common/util control/event_loop control/control_socket control/json_rpc))
