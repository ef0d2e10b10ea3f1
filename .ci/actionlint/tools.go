//go:build tools

// Package tools pins the version of actionlint.
package tools

import _ "github.com/rhysd/actionlint/cmd/actionlint"
