package profile

// ReadFile lets a test change the file between fstat and read.
var ReadFile = readFile

// FromRelayWith is FromRelay with another registry.
var FromRelayWith = fromRelay

// BuiltInsAt gives the built-in Profiles of another place.
var BuiltInsAt = builtInsAt
