//go:build tools

// Package tools pins the two versions of Helm that install the chart in the tests.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
	_ "helm.sh/helm/v4/cmd/helm"
)
