# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_settle,control/settle control/softnet common/cpulist common/util))
