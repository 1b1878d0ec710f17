module drawbridge/kitrun

go 1.26.0

require drawbridge/shared v0.0.0

require (
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/go-json-experiment/json v1.27.2 // indirect
	github.com/oklog/run v1.2.0 // indirect
	github.com/peterbourgon/ff/v3 v3.4.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/term v0.48.0 // indirect
)

replace drawbridge/shared => ../shared
