# SPDX-License-Identifier: BSD-2-Clause
PLACEMENT_ROOMS := control/placement control/placement_survey control/placement_pay control/placement_fixed
$(eval $(call unit_test,test_placement,$(PLACEMENT_ROOMS)))
$(eval $(call unit_test,test_placement_pay,$(PLACEMENT_ROOMS)))
$(eval $(call unit_test,test_placement_fixed,$(PLACEMENT_ROOMS)))
$(eval $(call unit_test,test_placement_properties,$(PLACEMENT_ROOMS)))
