# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_topology,control/topology common/cpulist common/error common/util))
