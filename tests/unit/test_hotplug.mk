# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_hotplug,control/hotplug control/event_loop common/cpulist common/error common/log common/util))
