package reason

// Descriptions is for tests in package reason_test.
var Descriptions = descriptions
