package kit

// Rewrite reads a registry and writes it again.
func Rewrite(data []byte) ([]byte, error) {
	r, err := parseRegistry(data)
	if err != nil {
		return nil, err
	}
	return r.bytes()
}

// Parse reads a kit.json without the files beside it.
func Parse(data []byte) Report {
	var r Report
	parseManifest(data, &r)
	return r
}

var WithoutUser = withoutUser
