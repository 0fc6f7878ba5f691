# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_softnet,control/softnet common/cpulist common/util))
