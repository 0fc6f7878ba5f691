# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_irq,control/irq common/cpulist common/util))
