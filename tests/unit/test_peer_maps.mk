# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_peer_maps,control/peer_maps common/reaper common/util))
