module github.com/k3infer/k3/backends/_gen

go 1.26.8
