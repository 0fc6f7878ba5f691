# SPDX-License-Identifier: BSD-2-Clause
UPLINK_ROOMS := common/log common/util common/error common/cpulist control/topology control/netdev control/netdev_link \
	control/netdev_ethtool control/netdev_xdp control/tx_checksum control/uplink_lock control/uplink_check control/uplink control/host_link control/bpf_lanes control/bpf_loader control/bpf_host_link \
	control/bpf_maps control/bpf_pins control/bpf_tc control/bpf_xdp datapath/frame_pool datapath/lane datapath/lane_send datapath/frame_checksum datapath/checksum datapath/layout datapath/lane_device \
	datapath/lane_socket
$(eval $(call unit_test,test_uplink,$(UPLINK_ROOMS)))
$(eval $(call unit_test,test_uplink_traffic,$(UPLINK_ROOMS)))
