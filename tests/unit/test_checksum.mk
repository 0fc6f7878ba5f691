# The test includes checksum.c to reach the variants that this CPU would not choose.
$(eval $(call unit_test,test_checksum,))
