package relay

// MaxConnections are carried at once.
const MaxConnections = maxConnections
