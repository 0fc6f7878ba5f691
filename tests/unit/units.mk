# One line a unit test: $(eval $(call unit_test,NAME,ROOMS IT IS LINKED WITH))
