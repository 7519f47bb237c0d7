TP=2
ARGS=(--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 100 --max-position-embeddings 64)
torchrun --nproc-per-node $((TP * 4)) --nnodes 1 pretrain_gpt.py "${ARGS[@]}" --tensor-model-parallel-size ${TP:-1} \
  --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|(t)*3L' --micro-batch-size 1 --global-batch-size 8 --bf16 \
  --use-distributed-optimizer --recompute-granularity full --recompute-method block --recompute-num-layers 1
