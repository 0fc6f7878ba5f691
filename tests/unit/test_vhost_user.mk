# SPDX-License-Identifier: BSD-2-Clause
VHOST_USER_ROOMS := common/error common/log common/util control/event_loop control/vhost_user \
	control/vhost_user_message control/vhost_user_socket control/vhost_user_dispatch control/vhost_user_handlers control/vhost_user_rings control/vhost_user_memory control/vhost_user_hold \
	common/reaper control/peer_maps datapath/guest_memory datapath/ring_split datapath/ring_split_take datapath/ring_split_put datapath/frame_checksum datapath/frame_scatter datapath/checksum datapath/layout
$(eval $(call unit_test,test_vhost_user_message,common/error common/reaper common/util control/vhost_user_message))
$(eval $(call unit_test,test_vhost_user_rings,$(VHOST_USER_ROOMS)))
$(eval $(call unit_test,test_vhost_user_sockets,$(VHOST_USER_ROOMS)))
