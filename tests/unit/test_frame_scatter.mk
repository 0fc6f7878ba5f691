# The test includes frame_scatter.c to reach the variants that this CPU would not choose.
$(eval $(call unit_test,test_frame_scatter,))
