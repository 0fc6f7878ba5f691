# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_placement_properties,control/placement control/placement_survey control/placement_pay control/placement_fixed))
