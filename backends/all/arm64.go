package all

import _ "github.com/k3infer/k3/backends/arm64"
