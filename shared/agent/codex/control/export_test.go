package control

// What only the tests of this package see.
var (
	Answer         = answer
	ParseListeners = listeners
	LoopbackPort   = loopbackPort
)
