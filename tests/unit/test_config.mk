CONFIG_ROOMS := common/error common/log common/util common/cpulist common/suggest control/config control/config_file control/config_yaml control/config_port control/config_vlan control/config_option control/placement control/placement_survey control/placement_pay control/placement_fixed datapath/lane_device datapath/lane_socket datapath/lane datapath/lane_send datapath/frame_checksum datapath/checksum datapath/layout datapath/frame_pool
$(eval $(call unit_test,test_config,$(CONFIG_ROOMS)))
$(eval $(call unit_test,test_config_file,$(CONFIG_ROOMS)))
