# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_cpu_use,control/cpu_use common/util))
