"""Every variable that ``accelerate launch`` gives its ranks, for the same options and files, asked of accelerate itself."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from distconsole.grammar.pasting.read import read_command
from suite.neighbours import accelerate
from suite.programs import run_to_end

ASK = """
import json, os, sys
from accelerate.commands import launch
from accelerate.utils import launch as prepare

def variables(words):
    before = dict(os.environ)
    args = launch.launch_command_parser().parse_args([*words, "train.py"])
    args, file, precise = launch._validate_launch_command(args)
    if args.use_deepspeed and not args.cpu:
        fields = [*file.deepspeed_config] if file else []
        args.deepspeed_fields_from_accelerate_config = ",".join(
            fields + ["mixed_precision"] * precise
        )
        env = prepare.prepare_deepspeed_cmd_env(args)[1]
    elif (args.use_fsdp or args.multi_gpu) and not args.cpu:
        env = prepare.prepare_multi_gpu_env(args)
    else:
        env = prepare.prepare_simple_launcher_cmd_env(args)[1]
    return {name: value for name, value in env.items() if before.get(name) != value}

json.dump([variables(words) for words in json.load(sys.stdin)], sys.stdout)
"""
OF_A_RUN = {"OMP_NUM_THREADS", "PYTHONPATH", "MASTER_ADDR", "MASTER_PORT"}
"""What the run itself finds for each host."""

LOCAL = (
    "compute_environment: LOCAL_MACHINE\nmachine_rank: 0\nrdzv_backend: static\nuse_cpu: false\n"
)
FILES = {
    "multi.yaml": """\
# written by hand
distributed_type: MULTI_GPU
deepspeed_config: {}
downcast_bf16: 'no'
gpu_ids: 0,1
main_process_port: 29501   # a port
mixed_precision: fp16
num_machines: 1
num_processes: 2
""",
    "dynamo.yaml": """\
distributed_type: MULTI_GPU
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: max-autotune
  dynamo_use_dynamic: true
  dynamo_use_fullgraph: false
mixed_precision: bf16
num_machines: 1
num_processes: 4
""",
    "fsdp.yaml": """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: true
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
mixed_precision: bf16
num_machines: 1
num_processes: 8
""",
    "fsdp2.yaml": """\
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
mixed_precision: bf16
num_machines: 1
num_processes: 4
""",
    "zero3.yaml": """\
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
mixed_precision: bf16
num_machines: 1
num_processes: 8
""",
    "own.yaml": """\
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_config_file: ds.json
  zero3_init_flag: false
main_process_ip: 10.0.0.1
main_process_port: 29500
num_machines: 2
num_processes: 16
""",
}
COMMANDS = [
    "--cpu --num_processes 2",
    "--multi_gpu --num_processes 2",
    "--multi_gpu --gpu_ids 0,1 --num_processes 2 --debug --enable_cpu_affinity",
    "--multi_gpu --num_processes 2 --mixed_precision bf16 --dynamo_backend inductor "
    "--dynamo_mode reduce-overhead --dynamo_use_dynamic",
    "--use_deepspeed --num_processes 2 --zero_stage 3 --offload_param_device cpu "
    "--gradient_clipping 1.0 --zero3_init_flag true --gradient_accumulation_steps 4",
    "--use_fsdp --num_processes 2 --fsdp_version 2 --fsdp_offload_params true "
    "--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer --fsdp_activation_checkpointing true",
    "--use_fsdp --fsdp_version 2 --use_parallelism_config --parallelism_config_tp_size 2 "
    "--num_processes 4",
    *(f"--config_file {name}" for name in FILES),
    "--config_file zero3.yaml --zero_stage 2 --mixed_precision fp16",
    "--config_file fsdp.yaml --fsdp_sharding_strategy SHARD_GRAD_OP",
    "--config_file multi.yaml --use_fsdp",
    "--config_file zero3.yaml --multi_gpu",
    "--config_file zero3.yaml --cpu",
]


@pytest.mark.torch_ranks
def test_ranks_have_the_variables_of_accelerate_itself(home: Path, cwd: Path) -> None:
    packages = accelerate()
    for name, text in FILES.items():
        Path(name).write_text(LOCAL + text)
    words = [shlex.split(each) for each in COMMANDS]
    asked = run_to_end(
        [sys.executable, "-W", "ignore", "-c", ASK],
        input=json.dumps(words),
        env={**os.environ, "PYTHONPATH": str(packages)},
        check=True,
    )
    for command, theirs in zip(COMMANDS, json.loads(asked.stdout), strict=True):
        ours = dict(read_command(["accelerate", "launch", *shlex.split(command), "t.py"]).env)
        for env in (theirs, ours):
            for name in OF_A_RUN & env.keys():
                del env[name]
        assert ours == theirs, command
