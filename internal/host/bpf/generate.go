package bpf

//go:generate go tool bpf2go -cc clang-19 -target bpfel -output-stem offset offset offset.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -target bpfel -type row -output-stem walk walk walk.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -target bpfel -type slot -type event -type state -type class_key -type class_counts -type edge_key -type edge_counts -type flow -type real_end -type service -type flow_state -output-stem count count count.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -target bpfel -type task -output-stem task task task.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate sh -c "sha256sum generate.go *.bpf.c *.h *_bpfel.go *_bpfel.o > generated.sum"
