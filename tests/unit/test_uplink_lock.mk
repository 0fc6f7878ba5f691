# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_uplink_lock,common/log common/util common/error common/cpulist control/topology control/netdev control/netdev_link control/netdev_ethtool control/uplink_lock))
