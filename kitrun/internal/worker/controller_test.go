package worker_test

// roleVariable makes the test binary another kitrun: see asController.
const roleVariable = "WORKER_TEST_ROLE"

func asController(string) int { return 1 }
