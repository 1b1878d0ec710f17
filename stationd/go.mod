module drawbridge/stationd

go 1.26.0

require drawbridge/shared v0.0.0

require (
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-sqlite3 v1.14.53 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

require (
	aead.dev/minisign v0.3.0
	github.com/coreos/go-systemd/v22 v22.7.0
	github.com/go-json-experiment/json v1.27.2 // indirect
	github.com/google/go-cmp v0.7.0
	github.com/oklog/run v1.2.0 // indirect
	github.com/peterbourgon/ff/v3 v3.4.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/crypto v0.59.0
	golang.org/x/sys v0.50.0
	golang.org/x/term v0.48.0 // indirect
)

replace drawbridge/shared => ../shared
